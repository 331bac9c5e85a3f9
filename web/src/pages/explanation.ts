import { mount } from "svelte";

import type { ExplanationDocument } from "../documents/explanation";
import { carried } from "../documents/shared";
import ExplanationPage from "../explanation/ExplanationPage.svelte";

mount(ExplanationPage, { target: document.body, props: { data: carried<ExplanationDocument>("explanation") } });
