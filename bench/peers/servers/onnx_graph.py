"""A GPT-2 checkpoint as an ONNX graph for any length, built node by node in the fused operators that ONNX Runtime's own
optimizer would put there."""

import json
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

FUSED = "com.microsoft"


class _Graph:
    """Nodes and weights as they are added."""

    def __init__(self, tensors):
        self.tensors, self.nodes, self.weights = tensors, [], {}

    def weight(self, name):
        self.weights[name] = self.tensors[name]
        return name

    def add(self, operator, inputs, outputs, **attributes):
        self.nodes.append(helper.make_node(operator, inputs, outputs, **attributes))
        return outputs[0]


def write(directory, destination):
    """Inputs `ids` and `positions` [1, N] int64, output `final` [1, N, d]."""
    config = json.loads((Path(directory) / "config.json").read_text())
    epsilon = config.get("layer_norm_epsilon", 1e-5)
    g = _Graph(load_file(Path(directory) / "model.safetensors"))
    g.add("Gather", [g.weight("wte.weight"), "ids"], ["tokens"])
    g.add("Gather", [g.weight("wpe.weight"), "positions"], ["places"])
    x = g.add("Add", ["tokens", "places"], ["x"])
    norm = [g.weight("h.0.ln_1.weight"), g.weight("h.0.ln_1.bias")]
    normed = g.add("LayerNormalization", [x, *norm], ["h.0.normed"], epsilon=epsilon)

    def add_and_norm(x, branch, bias, norm, name):
        """x + branch + bias, and its norm."""
        inputs = [x, branch, g.weight(f"{norm}.weight"), g.weight(f"{norm}.bias"), g.weight(bias)]
        outputs = [f"{name}.normed", "", "", f"{name}.x"]
        g.add("SkipLayerNormalization", inputs, outputs, domain=FUSED, epsilon=epsilon)
        return outputs[3], outputs[0]

    for i in range(config["n_layer"]):
        h, last = f"h.{i}", i + 1 == config["n_layer"]
        qkv = [g.weight(f"{h}.attn.c_attn.weight"), g.weight(f"{h}.attn.c_attn.bias")]
        heads = {"num_heads": config["n_head"], "unidirectional": 1}
        z = g.add("Attention", [normed, *qkv], [f"{h}.z"], domain=FUSED, **heads)
        out = g.add("MatMul", [z, g.weight(f"{h}.attn.c_proj.weight")], [f"{h}.attn_out"])
        x, normed = add_and_norm(x, out, f"{h}.attn.c_proj.bias", f"{h}.ln_2", f"{h}.mid")
        up = g.add("MatMul", [normed, g.weight(f"{h}.mlp.c_fc.weight")], [f"{h}.up"])
        active = g.add("FastGelu", [up, g.weight(f"{h}.mlp.c_fc.bias")], [f"{h}.active"], domain=FUSED)
        down = g.add("MatMul", [active, g.weight(f"{h}.mlp.c_proj.weight")], [f"{h}.down"])
        x, normed = add_and_norm(x, down, f"{h}.mlp.c_proj.bias", "ln_f" if last else f"h.{i + 1}.ln_1", f"{h}.post")
    g.add("Identity", [normed], ["final"])
    ids = [helper.make_tensor_value_info(name, TensorProto.INT64, [1, "N"]) for name in ("ids", "positions")]
    final = helper.make_tensor_value_info("final", TensorProto.FLOAT, [1, "N", config["n_embd"]])
    weights = [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in g.weights.items()]
    graph = helper.make_graph(g.nodes, "gpt2", ids, [final], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(FUSED, 1)]
    Path(destination).write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
