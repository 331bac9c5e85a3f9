import CircuitsPage from "../circuits/CircuitsPage.svelte";
import type { CircuitsDocument } from "../documents/circuits";
import { carried } from "../documents/shared";
import type { Cell } from "../frame/cell";
import { opened, type Opened } from "../frame/opened";

export const open = (target: HTMLElement, cell?: Cell): Opened =>
  opened(CircuitsPage, target, {
    data: cell ? (cell.document() as CircuitsDocument) : carried<CircuitsDocument>("circuits"),
  });
