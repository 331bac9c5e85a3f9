import { flushSync } from "svelte";
import { expect, test } from "vitest";

import { AskedInTurn } from "../src/explorer/asked.svelte";
import { Refusal, type Answer, type Question, type Transport } from "../src/explorer/transport";

const questionOf = (run: string) => ({ name: "thumbs", of: { run }, view: {} }) as Question;
const answerOf = (run: string) => ({ facts: { run } }) as unknown as Answer;
const turn = () => new Promise((later) => setTimeout(later));

test("questions are asked in turn, and answers are of one list alone", async () => {
  const asked: { run: string; answer: (found: Answer) => void; refuse: (error: unknown) => void }[] = [];
  const ask = (question: Question) =>
    new Promise<Answer>((answer, refuse) => asked.push({ run: (question.of as { run: string }).run, answer, refuse }));
  let runs = $state(["a", "b"]);
  let found!: AskedInTurn;
  const end = $effect.root(() => {
    found = new AskedInTurn({ ask } as unknown as Transport, () => runs.map(questionOf));
  });
  const seen = () => found.answers.map((answer) => answer.facts.run);
  flushSync();
  await turn();
  expect([asked.map(({ run }) => run), seen(), found.isWaiting]).toEqual([["a"], [], true]);
  asked[0].answer(answerOf("a"));
  await turn();
  expect([asked.map(({ run }) => run), seen(), found.isWaiting]).toEqual([["a", "b"], ["a"], true]);

  // others are asked for: what comes of the old ones is not taken, and what there was stays until the first comes
  runs = ["c", "d"];
  flushSync();
  asked[1].answer(answerOf("b"));
  await turn();
  expect([asked.map(({ run }) => run), seen()]).toEqual([["a", "b", "c"], ["a"]]);
  asked[2].answer(answerOf("c"));
  await turn();
  expect([seen(), found.isWaiting]).toEqual([["c"], true]);
  asked[3].answer(answerOf("d"));
  await turn();
  expect([seen(), found.isWaiting, found.fault]).toEqual([["c", "d"], false, null]);

  // one that is refused ends the list
  const fault = { code: "TooLarge", message: "no", hint: "" };
  runs = ["e", "f"];
  flushSync();
  await turn();
  asked[4].refuse(new Refusal(fault));
  await turn();
  expect([asked.length, seen(), found.isWaiting, found.fault]).toEqual([5, [], false, fault]);
  runs = [];
  flushSync();
  await turn();
  expect([seen(), found.isWaiting, found.fault]).toEqual([[], false, null]);
  end();
});
