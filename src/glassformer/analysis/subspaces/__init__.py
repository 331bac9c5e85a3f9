"""Where in the stream do things lie? Bandwidth, overlaps, erasure, dimensions, and whether the basis matters."""

from typing import TYPE_CHECKING

from glassformer.analysis.subspaces._basis import (
    Kurtosis as Kurtosis,
    RotationTest as RotationTest,
    kurtosis as kurtosis,
    rotate as rotate,
    rotation as rotation,
    rotation_test as rotation_test,
)
from glassformer.analysis.subspaces._subspaces import (
    Bandwidth as Bandwidth,
    Erasers as Erasers,
    Erasure as Erasure,
    JointPca as JointPca,
    Overlaps as Overlaps,
    StreamDimensions as StreamDimensions,
    bandwidth as bandwidth,
    erasers as erasers,
    erasure as erasure,
    joint_pca as joint_pca,
    overlaps as overlaps,
    stream_dimensions as stream_dimensions,
)
from glassformer.analysis.subspaces._token_plane import (
    TokenPlane as TokenPlane,
    token_plane as token_plane,
)
from glassformer.lazy import renames

if not TYPE_CHECKING:
    __getattr__ = renames(__name__)
