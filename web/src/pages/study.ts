import { mount } from "svelte";

import { carried } from "../documents/shared";
import type { StudyDocument } from "../documents/study";
import StudyPage from "../study/StudyPage.svelte";

mount(StudyPage, { target: document.body, props: { data: carried<StudyDocument>("study") } });
