import { expect, test, vi } from "vitest";

import { HttpTransport } from "../src/explorer/transport";
import { GONE, Kernel, type Model } from "../src/notebook/kernel";

interface Sent {
  id: string;
  method?: string;
  path?: string;
  body?: string | null;
  isDropped?: boolean;
}

/** A model of a widget whose kernel is the test: what was sent, and a way to be told things. */
function modelOf() {
  const heard = new Map<string, Set<(...told: unknown[]) => void>>();
  const sent: Sent[] = [];
  const tell = (event: string, ...told: unknown[]) => heard.get(event)?.forEach((one) => one(...told));
  const model: Model = {
    get: () => null,
    set: () => undefined,
    save_changes: () => undefined,
    send: (message) => sent.push(message as Sent),
    on: (event, one) => heard.set(event, (heard.get(event) ?? new Set()).add(one as never)),
    off: (event, one) => heard.get(event)?.delete(one as never),
  };
  const answer = (part: object, text: string) => {
    // a view into a larger buffer, as a notebook gives it
    const bytes = new TextEncoder().encode(`..${text}`);
    tell("msg:custom", part, [new DataView(bytes.buffer, 2)]);
  };
  return { model, sent, tell, answer, listening: () => [...heard.values()].reduce((sum, one) => sum + one.size, 0) };
}

const begun = { status: 200, headers: { "content-type": "application/json" } };

test("a request is a message, and its answer is a response", async () => {
  const { model, sent, answer } = modelOf();
  const transport = new HttpTransport(new Kernel(model).ask);
  const found = transport.load("m");
  expect(sent).toMatchObject([{ method: "POST", path: "/api/v1/models/load", body: '{"model":"m"}' }]);
  answer({ id: "another view's", ...begun, isLast: true }, "[]");
  answer({ id: sent[0].id, ...begun, isLast: true }, '{"id":"m"}');
  expect(await found).toEqual({ id: "m" });
});

test("steps come one by one, and whoever stops reading says so", async () => {
  const { model, sent, answer } = modelOf();
  const steps = new HttpTransport(new Kernel(model).ask).steps("sweeps", { run: "r", sweep: "ablate_heads" } as never);
  const first = steps.next();
  await vi.waitFor(() => expect(sent).toHaveLength(1));
  const { id } = sent[0];
  answer({ id, ...begun, isLast: false }, '{"i":0}\n{"i"');
  expect((await first).value).toEqual({ i: 0 });
  answer({ id, isLast: false }, ":1}\n");
  expect((await steps.next()).value).toEqual({ i: 1 });
  await steps.return(undefined);
  expect(sent.slice(1)).toEqual([{ id, isDropped: true }]);
});

test("what is not wanted any more is dropped, and its answer goes unheard", async () => {
  const { model, sent, answer } = modelOf();
  const leaving = new AbortController();
  const found = new Kernel(model).ask("/api/v1/models", { signal: leaving.signal });
  leaving.abort();
  await expect(found).rejects.toMatchObject({ name: "AbortError" });
  expect(sent[1]).toEqual({ id: sent[0].id, isDropped: true });
  answer({ id: sent[0].id, ...begun, isLast: true }, "[]");
});

test.each(["comm:close", "comm_live_update"])("a kernel that ended is said to have: %s", async (event) => {
  const { model, sent, tell } = modelOf();
  const transport = new HttpTransport(new Kernel(model).ask);
  const asked = transport.models();
  tell(event);
  await expect(asked).rejects.toMatchObject({ fault: { code: GONE } });
  await expect(transport.models()).rejects.toMatchObject({ fault: { code: GONE } });
  expect(sent).toHaveLength(1);
});

test("a notebook that cannot send has no such kernel any more", async () => {
  const { model, sent } = modelOf();
  const transport = new HttpTransport(new Kernel(model).ask);
  const before = transport.models();
  model.send = () => {
    throw new Error("Cannot send");
  };
  await expect(transport.load("m")).rejects.toMatchObject({ fault: { code: GONE } });
  await expect(before).rejects.toMatchObject({ fault: { code: GONE } });
  expect(sent).toHaveLength(1);
});

test("a view that is closed drops what it asked for, and hears nothing more", async () => {
  const { model, sent, listening } = modelOf();
  const kernel = new Kernel(model);
  const found = kernel.ask("/api/v1/models");
  kernel.close();
  await expect(found).rejects.toMatchObject({ name: "AbortError" });
  expect(sent[1]).toEqual({ id: sent[0].id, isDropped: true });
  expect(listening()).toBe(0);
});
