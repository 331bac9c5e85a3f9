import { mount } from "svelte";

import type { ResultsDocument } from "../documents/results";
import { carried } from "../documents/shared";
import ResultsPage from "../results/ResultsPage.svelte";

mount(ResultsPage, { target: document.body, props: { data: carried<ResultsDocument>("results") } });
