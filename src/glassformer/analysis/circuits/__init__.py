"""Which edges carry it? Path patching, edge attribution, pruning, faithfulness."""

from glassformer.analysis.circuits._acdc import (
    Acdc as Acdc,
    AcdcCurve as AcdcCurve,
    Compared as Compared,
    Pruned as Pruned,
    acdc as acdc,
    acdc_curve as acdc_curve,
)
from glassformer.analysis.circuits._attribution_patching import (
    EdgeAttribution as EdgeAttribution,
    NodeAttribution as NodeAttribution,
    Verified as Verified,
    attribute_edges as attribute_edges,
    attribute_nodes as attribute_nodes,
)
from glassformer.analysis.circuits._faithfulness import (
    Faithfulness as Faithfulness,
    faithfulness as faithfulness,
)
from glassformer.analysis.circuits._graph import (
    CircuitGraph as CircuitGraph,
    Edge as Edge,
    Receiver as Receiver,
    Sender as Sender,
    circuit_graph as circuit_graph,
)
from glassformer.analysis.circuits._path_patching import (
    EdgeEffects as EdgeEffects,
    PathPatching as PathPatching,
    SenderEffects as SenderEffects,
    edge_effects as edge_effects,
    path_patching as path_patching,
    sender_effects as sender_effects,
)
