import type { ResultsDocument } from "../documents/results";
import { carried } from "../documents/shared";
import type { Cell } from "../frame/cell";
import { opened, type Opened } from "../frame/opened";
import ResultsPage from "../results/ResultsPage.svelte";

export const open = (target: HTMLElement, cell?: Cell): Opened =>
  opened(ResultsPage, target, {
    data: cell ? (cell.document() as ResultsDocument) : carried<ResultsDocument>("results"),
  });
