import { carried } from "../documents/shared";
import type { StudyDocument } from "../documents/study";
import type { Cell } from "../frame/cell";
import { opened, type Opened } from "../frame/opened";
import StudyPage from "../study/StudyPage.svelte";

export const open = (target: HTMLElement, cell?: Cell): Opened =>
  opened(StudyPage, target, { data: cell ? (cell.document() as StudyDocument) : carried<StudyDocument>("study") });
