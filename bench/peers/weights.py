"""Write a model with random weights in the layout that an engine of engine.py reads.

    weights.py ENGINE CONFIG.json FOLDER WEIGHTS

CONFIG.json is the config.json of transformers. WEIGHTS is F32 or BF16; int8 or int4 for OpenVINO, which compresses
weights in groups or rows; int8 for vLLM: a scale per row, with activations rounded to int8 as well (W8A8).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

OF_VLLM_INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False,
            },
            "input_activations": {
                "num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True,
            },
        }
    },
}  # fmt: skip


def write_floats(config_path: Path, folder: Path, weights: str) -> None:
    """Write a model with the weights that transformers initialises."""
    import torch
    import transformers

    fields = json.loads(config_path.read_text())
    config = transformers.AutoConfig.for_model(**fields)
    dtype = {"F32": torch.float32, "BF16": torch.bfloat16}[weights]
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.save_pretrained(folder)


def round_rows(folder: Path) -> None:
    """Replace the matrices of the layers by codes of 8 bits and a scale per row."""
    import torch
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    found = {}
    for name, values in load_file(path).items():
        if values.dim() == 2 and ".layers." in name:
            scale = values.float().abs().amax(dim=1, keepdim=True) / 127
            found[name] = (values.float() / scale).round().to(torch.int8)
            found[f"{name}_scale"] = scale
        else:
            found[name] = values
    save_file(found, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = OF_VLLM_INT8
    (folder / "config.json").write_text(json.dumps(config))


def export(source: Path, folder: Path, weights: str) -> None:
    """Write the model for OpenVINO."""
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    bits = {"int8": 8, "int4": 4}.get(weights)
    options = {"quantization_config": OVWeightQuantizationConfig(bits=bits)} if bits else {}
    model = OVModelForCausalLM.from_pretrained(source, export=True, compile=False, **options)
    model.save_pretrained(folder)


def main(engine: str, config: str, folder: str, weights: str) -> None:
    """Write the folder."""
    path, target = Path(config), Path(folder)
    if engine != "openvino":
        write_floats(path, target, "F32" if weights == "F32" else "BF16")
        if weights == "int8":
            round_rows(target)
        return
    source = target / "floats"
    write_floats(path, source, "F32" if weights == "F32" else "BF16")
    export(source, target, weights)


if __name__ == "__main__":
    main(*sys.argv[1:])
