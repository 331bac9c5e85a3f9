"""Images with a class each: drawn shapes with a question, and handwritten digits."""

from glassformer.data.images.digits import Digits
from glassformer.data.images.image_data import ImageConfig, ImageData, ImagesOfClasses
from glassformer.data.images.shapes import Shape, Shapes

__all__ = ["Digits", "ImageConfig", "ImageData", "ImagesOfClasses", "Shape", "Shapes"]
