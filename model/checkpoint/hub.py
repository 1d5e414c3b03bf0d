"""Models of the Hugging Face hub, by their names: fetched into its own cache, where other programs find them too."""

import re
from pathlib import Path

from huggingface_hub import snapshot_download

from model.checkpoint.gguf import Progress
from model.checkpoint.weight_files import INDEX
from model.errors import CheckpointError

# `model*`: some repositories hold the same weights a second time under other names
PATTERNS = ("config.json", "model*.safetensors", INDEX, "tokenizer.json")
_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)


def is_hub_name(name: str) -> bool:
    """Whether a name has the form `organisation/model`."""
    return _NAME.fullmatch(name) is not None


def hub_model(name: str, revision: str | None, progress: Progress) -> Path:
    """The directory of a model in the hub's cache, fetched if it is not there.

    `revision` is a branch, a tag or a commit, None the main branch. HF_HUB_OFFLINE, HF_HUB_CACHE, HF_TOKEN and
    the like mean what they mean elsewhere. Raises CheckpointError.
    """
    progress(f"looking for {name} on the Hugging Face hub, revision {revision or 'main'}")
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(PATTERNS)))
    except Exception as error:  # of a dozen kinds that have no base in common
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise CheckpointError(
            f"{name}: no such directory here, and not to be had from the Hugging Face hub ({reason})"
        ) from None
