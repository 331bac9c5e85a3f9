// A question whose answer follows what it depends on: asked again when that changes, the latest alone being waited for.

import { untrack } from "svelte";

import type { Fault } from "./api";
import { isDropped, Refusal, UNREACHABLE, type Answer, type Question, type Transport } from "./transport";

let lanes = 0;
const AGAIN = 1000; // milliseconds until a server that does not answer is asked again
const IDLE = 200; // milliseconds without a new question, after which those to come are asked

interface Settled {
  answer: Answer | null;
  fault: Fault | null;
}

/** Ask until there is an answer or a refusal; null if nobody waits any more. A server out of reach is asked again. */
async function settled(
  api: Transport,
  question: Question,
  lane: string,
  signal: AbortSignal,
  unreached: (fault: Fault) => void,
): Promise<Settled | null> {
  while (!signal.aborted) {
    try {
      const answer = await api.ask(question, { lane, signal });
      return signal.aborted ? null : { answer, fault: null };
    } catch (error) {
      if (signal.aborted || isDropped(error)) return null;
      const fault = error instanceof Refusal ? error.fault : { code: "Unexpected", message: String(error), hint: "" };
      if (fault.code !== UNREACHABLE) return { answer: null, fault };
      unreached(fault);
      await new Promise((later) => setTimeout(later, AGAIN));
    }
  }
  return null;
}

export class Asked<Given = undefined> {
  /** The latest answer, which stays while the next is waited for. */
  answer = $state.raw<Answer | null>(null);
  /** What went with the question that was answered last: of the run of now it may not hold any more. */
  given = $state.raw<Given | null>(null);
  /** Why there is none. */
  fault = $state.raw<Fault | null>(null);
  isWaiting = $state(false);
  /** The question that was answered last. */
  question = $state.raw<Question | null>(null);

  /**
   * Asks while the component it is made in lives. `make` gives null while there is nothing to ask; `give` what the answer
   * is drawn with, such as the tokens of its run.
   */
  constructor(api: Transport, make: () => Question | null, give?: () => Given) {
    const lane = `asked-${(lanes += 1)}`;
    const key = $derived(JSON.stringify(make()));
    $effect(() => {
      const question = JSON.parse(key) as Question | null;
      this.isWaiting = question !== null;
      if (!question) {
        this.answer = this.fault = this.question = this.given = null;
        return;
      }
      const given = untrack(() => give?.() ?? null);
      const leaving = new AbortController();
      void settled(api, question, lane, leaving.signal, (fault) => (this.fault = fault)).then((found) => {
        if (!found) return;
        [this.answer, this.fault, this.isWaiting] = [found.answer, found.fault, false];
        [this.question, this.given] = [question, given];
      });
      return () => leaving.abort();
    });
  }
}

/** Questions of which each is asked once the one before is answered, so that what else is asked comes in between. */
export class AskedInTurn {
  /** The answers that there are, all of one list of questions: those of before stay until the first comes. */
  answers = $state.raw<readonly Answer[]>([]);
  /** Why one is missing. */
  fault = $state.raw<Fault | null>(null);
  isWaiting = $state(false);

  /** Asks while the component it is made in lives. */
  constructor(api: Transport, make: () => readonly Question[]) {
    const lane = `asked-${(lanes += 1)}`;
    const key = $derived(JSON.stringify(make()));
    $effect(() => {
      const questions = JSON.parse(key) as readonly Question[];
      const leaving = new AbortController();
      void this.askAll(api, questions, lane, leaving.signal);
      return () => leaving.abort();
    });
  }

  private async askAll(api: Transport, questions: readonly Question[], lane: string, signal: AbortSignal) {
    this.isWaiting = questions.length > 0;
    let answers: readonly Answer[] = [];
    for (const question of questions) {
      const found = await settled(api, question, lane, signal, (fault) => (this.fault = fault));
      if (!found) return;
      answers = found.answer ? [...answers, found.answer] : [];
      [this.answers, this.fault] = [answers, found.fault];
      if (found.fault) break;
    }
    [this.answers, this.isWaiting] = [answers, false];
  }
}

/**
 * Ask what is likely to be asked next, one question after another, once those of now are answered and nobody has asked
 * anything else for a moment: the transport keeps the answers. What is refused is told to whoever asks for it.
 */
export function askAhead(api: Transport, make: () => readonly Question[]): void {
  const key = $derived(JSON.stringify(make()));
  $effect(() => {
    const questions = JSON.parse(key) as readonly Question[];
    const leaving = new AbortController();
    const later = setTimeout(async () => {
      for (const question of questions) {
        if (leaving.signal.aborted) return;
        await api.ask(question, { lane: "ahead", signal: leaving.signal }).catch(() => null);
      }
    }, IDLE);
    return () => {
      clearTimeout(later);
      leaving.abort();
    };
  });
}
