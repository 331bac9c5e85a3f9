"""Images with a class each: drawn shapes with a question, and handwritten digits; and both with noise in them."""

from glassformer.data.images.digits import Digits
from glassformer.data.images.image_data import ImageConfig, ImageData, ImagesOfClasses
from glassformer.data.images.noise import Cosine, NoiseSchedule, Straight
from glassformer.data.images.noised import Noised, noise_images, stretched
from glassformer.data.images.shapes import Shape, Shapes

__all__ = [
    "Cosine",
    "Digits",
    "ImageConfig",
    "ImageData",
    "ImagesOfClasses",
    "NoiseSchedule",
    "Noised",
    "Shape",
    "Shapes",
    "Straight",
    "noise_images",
    "stretched",
]
