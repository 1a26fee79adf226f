"""Exports the encoder of a sentence-transformers folder to ONNX. Run as `text_onnx.py WEIGHTS FOLDER`."""

import sys
from pathlib import Path

from optimum.onnxruntime import ORTModelForFeatureExtraction

if __name__ == "__main__":
    weights, folder = sys.argv[1], Path(sys.argv[2])
    ORTModelForFeatureExtraction.from_pretrained(weights, export=True).save_pretrained(folder / "onnx")
    (folder / "onnx" / "model.onnx").rename(folder / "model.onnx")  # the folder's other files stay as they are
