// Results that have a picture of their own besides the maps and bars of their numbers.

import type { Component } from "svelte";

import type { Result } from "../documents/results";
import BackwardView from "./BackwardView.svelte";
import CircuitView from "./CircuitView.svelte";
import ComponentsView from "./ComponentsView.svelte";
import CostsView from "./CostsView.svelte";
import FeaturesView from "./FeaturesView.svelte";
import HeadsView from "./HeadsView.svelte";
import LensView from "./LensView.svelte";
import RankedTokensView from "./RankedTokensView.svelte";
import RoutesView from "./RoutesView.svelte";

export const VIEWS: Readonly<Record<string, Component<{ result: Result }> | undefined>> = {
  AttentionCosts: CostsView,
  FeatureExamples: FeaturesView,
  FeatureTokens: RankedTokensView,
  TokenPairs: RankedTokensView,
  SkipTrigrams: RankedTokensView,
  TokenCircuits: RankedTokensView,
  HeadsOverCorpus: HeadsView,
  LensGrid: LensView,
  BackwardLens: BackwardView,
  FlowRoutes: RoutesView,
  DirectLogitAttribution: ComponentsView,
  EdgeAttribution: CircuitView,
  Acdc: CircuitView,
};
