"""A text of our own, for models that were trained on English."""

TEXT = """\
The river rises in a wet meadow below the pass, where three springs meet under alder roots. In April the water is so
cold that the herdsmen carry it in wooden pails to keep their butter firm, and by late summer a child can step across
without wetting a shoe. Nobody in the valley agrees about its name. The people of the upper farms call it the Ash,
after the trees; those further down say the Mill Brook, although the last of the 4 mills burned in 1871 and only a
ring of black stones shows where the wheel stood. "It carried my grandfather's barrels," an old man told us, "and it
will carry your paper boats, if you fold them well." We folded them well. They turned twice in the pool under the
bridge, met the current, and were gone before we could count to 10. That evening we looked at the map again. Between
the bridge and the sea there are 212 kilometres, nine towns, two dams, and one waterfall that is not drawn on any
sheet because it moves a little every year. What would be left of a boat after that? Perhaps the crease along the
keel, perhaps a corner with half a word on it. Still, my sister wrote our address inside each of them in pencil,
"""


def english(tokenizer, length: int) -> list[int]:
    """The text's first tokens, from the beginning again where it is too short."""
    ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
    return (ids * (length // len(ids) + 1))[:length]
