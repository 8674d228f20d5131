"""Images as inputs of text models: image encoders and the preparation of images for them."""

from plait.vision.encoder import ImageEmbeddings, Vision

__all__ = ["ImageEmbeddings", "Vision"]
