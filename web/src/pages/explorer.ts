import { Address } from "../explorer/address";
import ExplorerPage from "../explorer/ExplorerPage.svelte";
import { HttpTransport } from "../explorer/transport";
import type { Cell } from "../frame/cell";
import { opened, type Opened } from "../frame/opened";

export const open = (target: HTMLElement, cell?: Cell): Opened =>
  opened(ExplorerPage, target, { api: new HttpTransport(cell?.ask), home: cell?.home ?? new Address() });
