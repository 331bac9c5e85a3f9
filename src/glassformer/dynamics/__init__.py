"""Dynamics: the physical, continuous and computational views of a transformer, as code that runs.

Each module is one view: its equation and source, the thing itself, and what of it can be checked.
"""

from typing import TYPE_CHECKING

from glassformer.lazy import lazily

if TYPE_CHECKING:
    from glassformer.dynamics import prompting
    from glassformer.dynamics.astrocytes import NeuronAstrocyteNetwork, Tripartite
    from glassformer.dynamics.circuits import (
        GATES,
        Circuit,
        Gate,
        circuit_decoder,
        circuit_widths,
        gate_values,
        gates_by_chain,
        random_circuit,
        wrong_gates,
    )
    from glassformer.dynamics.committee import (
        CommitteeState,
        Overlaps,
        committee_error,
        committee_overlaps,
        committee_state,
        specialisation,
    )
    from glassformer.dynamics.consensus import (
        EllipsoidAttention,
        EllipsoidHead,
        TheoremCheck,
        check_theorem,
        hypotheses,
        in_one_half,
    )
    from glassformer.dynamics.continuous import BlockField, OdeSolution, kept_numbers, residual_gaps, solve
    from glassformer.dynamics.equivariance import EquivarianceTable, equivariance_defect, equivariance_table
    from glassformer.dynamics.equivariance_laws import EQUIVARIANCE_LAWS, EquivarianceLaw
    from glassformer.dynamics.hippocampus import (
        PathIntegration,
        TemDecoder,
        TemDecoderConfig,
        hebbian_recall,
        lattice_decoder,
        tem_config,
    )
    from glassformer.dynamics.hopfield import (
        BinaryMemory,
        ContinuousMemory,
        capacity,
        expected_capacity,
        expected_wrong_bits,
        wrong_bits,
    )
    from glassformer.dynamics.implicit import fixed_point
    from glassformer.dynamics.in_context import PairSpins, Prompts, draw_prompts, spins_of
    from glassformer.dynamics.integral_operator import (
        HeadOperator,
        PlacedTokens,
        TokenMeasure,
        sampling_errors,
        tokens_of,
    )
    from glassformer.dynamics.langevin import (
        ChainMeans,
        Chains,
        LineDensity,
        balance_temperatures,
        chain_means,
        gibbs_on_line,
        position_temperatures,
        run_chains,
    )
    from glassformer.dynamics.lipschitz import (
        LipschitzBounds,
        StretchedTokens,
        ball_bound,
        jacobian_norm,
        lipschitz_bounds,
        local_bound,
        stretched_tokens,
    )
    from glassformer.dynamics.particles import (
        ParticleFlow,
        clusters,
        equal_angles,
        leaders,
        merged,
        merging_time,
        on_sphere,
    )
    from glassformer.dynamics.place_cells import RateMaps, rate_maps, shuffled_information
    from glassformer.dynamics.quadratic_loss import QuadraticLoss, local_minimum
    from glassformer.dynamics.spins import (
        VectorSpins,
        binary_magnetisations,
        mean_field,
        mean_field_step,
        spin_norm,
        spontaneous_order,
    )
    from glassformer.dynamics.splitting import SCHEMES, ParticleTerms, particle_terms, split, splitting_gaps
    from glassformer.dynamics.steps import STEPS, fitted_orders, integrate
    from glassformer.dynamics.tokens import token_cosines
    from glassformer.dynamics.weight_space import WeightSpace, batch_gradients, gradient_noise, loss_gradients

_HOMES = {
    "astrocytes": ["NeuronAstrocyteNetwork", "Tripartite"],
    "committee": [
        "CommitteeState",
        "Overlaps",
        "committee_error",
        "committee_overlaps",
        "committee_state",
        "specialisation",
    ],
    "consensus": ["EllipsoidAttention", "EllipsoidHead", "TheoremCheck", "check_theorem", "hypotheses", "in_one_half"],
    "equivariance": ["EquivarianceTable", "equivariance_defect", "equivariance_table"],
    "equivariance_laws": ["EQUIVARIANCE_LAWS", "EquivarianceLaw"],
    "hippocampus": [
        "PathIntegration",
        "TemDecoder",
        "TemDecoderConfig",
        "hebbian_recall",
        "lattice_decoder",
        "tem_config",
    ],
    "hopfield": [
        "BinaryMemory",
        "ContinuousMemory",
        "capacity",
        "expected_capacity",
        "expected_wrong_bits",
        "wrong_bits",
    ],
    "implicit": ["fixed_point"],
    "in_context": ["PairSpins", "Prompts", "draw_prompts", "spins_of"],
    "integral_operator": ["HeadOperator", "TokenMeasure", "PlacedTokens", "sampling_errors", "tokens_of"],
    "langevin": [
        "ChainMeans",
        "Chains",
        "LineDensity",
        "balance_temperatures",
        "chain_means",
        "gibbs_on_line",
        "position_temperatures",
        "run_chains",
    ],
    "lipschitz": [
        "LipschitzBounds",
        "StretchedTokens",
        "ball_bound",
        "jacobian_norm",
        "lipschitz_bounds",
        "local_bound",
        "stretched_tokens",
    ],
    "particles": ["ParticleFlow", "clusters", "equal_angles", "leaders", "merged", "merging_time", "on_sphere"],
    "quadratic_loss": ["QuadraticLoss", "local_minimum"],
    "place_cells": ["RateMaps", "rate_maps", "shuffled_information"],
    "spins": [
        "VectorSpins",
        "binary_magnetisations",
        "mean_field",
        "mean_field_step",
        "spin_norm",
        "spontaneous_order",
    ],
    "tokens": ["token_cosines"],
    "circuits": [
        "GATES",
        "Circuit",
        "Gate",
        "circuit_decoder",
        "circuit_widths",
        "gate_values",
        "gates_by_chain",
        "random_circuit",
        "wrong_gates",
    ],
    "continuous": ["BlockField", "OdeSolution", "kept_numbers", "residual_gaps", "solve"],
    "splitting": ["SCHEMES", "ParticleTerms", "particle_terms", "split", "splitting_gaps"],
    "steps": ["STEPS", "fitted_orders", "integrate"],
    "weight_space": ["WeightSpace", "batch_gradients", "gradient_noise", "loss_gradients"],
}

__all__ = [
    "EQUIVARIANCE_LAWS",
    "GATES",
    "SCHEMES",
    "STEPS",
    "BinaryMemory",
    "BlockField",
    "ChainMeans",
    "Chains",
    "Circuit",
    "CommitteeState",
    "ContinuousMemory",
    "EllipsoidAttention",
    "EllipsoidHead",
    "EquivarianceLaw",
    "EquivarianceTable",
    "Gate",
    "HeadOperator",
    "LineDensity",
    "LipschitzBounds",
    "NeuronAstrocyteNetwork",
    "OdeSolution",
    "Overlaps",
    "PairSpins",
    "ParticleFlow",
    "ParticleTerms",
    "PlacedTokens",
    )
    "Prompts",
    "QuadraticLoss",
    "RateMaps",
    "StretchedTokens",
    "TemDecoder",
    "TemDecoderConfig",
    "TheoremCheck",
    "TokenMeasure",
    "Tripartite",
    "VectorSpins",
    "WeightSpace",
    "balance_temperatures",
    "ball_bound",
    "batch_gradients",
    "binary_magnetisations",
    "capacity",
    "chain_means",
    "check_theorem",
    "circuit_decoder",
    "circuit_widths",
    "clusters",
    "committee_error",
    "committee_overlaps",
    "committee_state",
    "draw_prompts",
    "equal_angles",
    "equivariance_defect",
    "equivariance_table",
    "expected_capacity",
    "expected_wrong_bits",
    "fitted_orders",
    "fixed_point",
    "gate_values",
    "gates_by_chain",
    "gibbs_on_line",
    "gradient_noise",
    "hebbian_recall",
    "hypotheses",
    "in_one_half",
    "integrate",
    "jacobian_norm",
    "kept_numbers",
    "lattice_decoder",
    "leaders",
    "lipschitz_bounds",
    "local_bound",
    "local_minimum",
    "loss_gradients",
    "mean_field",
    "mean_field_step",
    "merged",
    "merging_time",
    "on_sphere",
    "particle_terms",
    "position_temperatures",
    "prompting",
    "random_circuit",
    "rate_maps",
    "residual_gaps",
    "run_chains",
    "sampling_errors",
    "shuffled_information",
    "solve",
    "specialisation",
    "spin_norm",
    "spins_of",
    "split",
    "splitting_gaps",
    "spontaneous_order",
    "stretched_tokens",
    "tem_config",
    "token_cosines",
    "tokens_of",
    "wrong_bits",
    "wrong_gates",
]

__getattr__, __dir__ = lazily(__name__, _HOMES, ["prompting"])
