import { mount } from "svelte";

import CircuitsPage from "../circuits/CircuitsPage.svelte";
import type { CircuitsDocument } from "../documents/circuits";
import { carried } from "../documents/shared";

mount(CircuitsPage, { target: document.body, props: { data: carried<CircuitsDocument>("circuits") } });
