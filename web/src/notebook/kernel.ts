// Requests to the kernel of a notebook, as messages to a widget's model, answered there by what answers a server's pages.

import type { Fault } from "../explorer/api";
import type { Ask } from "../frame/cell";
import { spoken } from "../words";

/** What a notebook gives the view of a widget: traits that the kernel has too, and messages to it and from it. */
export interface Model {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  send(message: unknown): void;
  on(event: string, heard: (...told: never[]) => void): void;
  off(event: string, heard: (...told: never[]) => void): void;
}

/** A part of an answer: the first has its status, each its bytes in a buffer, and the last says that it is the last. */
interface Part {
  id: string;
  status?: number;
  headers?: Record<string, string>;
  isLast: boolean;
}

interface Waiting {
  answer(response: Response): void;
  refuse(reason: unknown): void;
  /** What comes behind the first part. */
  rest: ReadableStreamDefaultController<Uint8Array> | null;
}

/** Code of the fault of a kernel that ended, or was started again: it has no such widget any more. */
export const GONE = "KernelGone";

const fault = (): Fault => ({
  code: GONE,
  message: spoken("the kernel that this cell was run by has ended."),
  hint: spoken("Run the cell again."),
});
const refusal = () => new Response(JSON.stringify({ fault: fault() }), { status: 503 });

export class Kernel {
  private readonly waiting = new Map<string, Waiting>();
  // several views of one model hear each other's answers
  private readonly view = crypto.getRandomValues(new Uint32Array(2)).join("-");
  private asked = 0;
  private isLive = true;

  constructor(private readonly model: Model) {
    model.on("msg:custom", this.heard);
    model.on("comm_live_update", this.turned);
    model.on("comm:close", this.ended);
  }

  ask: Ask = (path, { method = "GET", headers = {}, body = null, signal } = {}) => {
    if (!this.isLive) return Promise.resolve(refusal());
    const id = `${this.view}/${(this.asked += 1)}`;
    return new Promise<Response>((answer, refuse) => {
      signal?.throwIfAborted();
      signal?.addEventListener("abort", () => this.drop(id, signal.reason));
      this.waiting.set(id, { answer, refuse, rest: null });
      this.tell({ id, method, path, headers, body });
    });
  };

  /** Ask nothing more, and wait for nothing. */
  close(): void {
    for (const id of [...this.waiting.keys()]) this.drop(id, new DOMException("the view is gone", "AbortError"));
    this.model.off("msg:custom", this.heard);
    this.model.off("comm_live_update", this.turned);
    this.model.off("comm:close", this.ended);
  }

  private tell(message: object): void {
    try {
      this.model.send(message);
    } catch {
      // a kernel that was started again has no such widget, which a notebook says when it is to send something
      this.ended();
    }
  }

  private drop(id: string, reason: unknown): void {
    const waiting = this.waiting.get(id);
    if (!waiting) return;
    this.waiting.delete(id);
    if (this.isLive) this.tell({ id, isDropped: true });
    if (waiting.rest) waiting.rest.error(reason);
    else waiting.refuse(reason);
  }

  private heard = (part: Part, buffers: readonly DataView[]): void => {
    const waiting = this.waiting.get(part.id);
    if (!waiting) return;
    const bytes = new Uint8Array(buffers[0].buffer as ArrayBuffer, buffers[0].byteOffset, buffers[0].byteLength);
    if (part.status === undefined) waiting.rest?.enqueue(bytes);
    else if (part.isLast) waiting.answer(new Response(bytes, part));
    else {
      const body = new ReadableStream<Uint8Array>({
        start: (rest) => {
          waiting.rest = rest;
          rest.enqueue(bytes);
        },
        cancel: (reason) => this.drop(part.id, reason),
      });
      waiting.answer(new Response(body, part));
    }
    if (!part.isLast) return;
    waiting.rest?.close();
    this.waiting.delete(part.id);
  };

  private turned = (): void => {
    this.isLive = !this.isLive;
    if (!this.isLive) this.refuseAll();
  };

  private ended = (): void => {
    this.isLive = false;
    this.refuseAll();
  };

  private refuseAll(): void {
    for (const { answer, rest } of this.waiting.values()) {
      if (rest) rest.error(new Error(fault().message));
      else answer(refusal());
    }
    this.waiting.clear();
  }
}
