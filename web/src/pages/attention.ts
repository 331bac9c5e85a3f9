import { mount } from "svelte";

import AttentionPage from "../attention/AttentionPage.svelte";
import { carried } from "../documents/shared";
import type { AttentionDocument } from "../documents/attention";

mount(AttentionPage, { target: document.body, props: { data: carried<AttentionDocument>("attention") } });
