// The words of the viewer: what a token's origin means, and what speculative sampling is.
const ORIGINS = {
  accepted: "drafted by the small model, and accepted", recovered: "the target's, after a rejection",
  bonus: "the target's, for free after all drafts were accepted", plain: "the target's, nothing was drafted",
  untold: "the engine does not report which tokens were drafted",
};
// A round of a trace; a column that the data lacks has these values.
const STEP = { drafted: 0, tested: 0, accepted: 0, emitted: 0, overlap: null, seconds: 0, draft: 0, target: 0, laws: [], parents: [], likeliest: [], tree: null };
const LESSON = [
  "A language model writes one token at a time, and each costs a whole pass of a large model, the target. That is ArS: every bar of its timeline is one pass, one token.",
  "Speculative sampling (SpS) lets a small, fast draft model guess a few tokens ahead. The target then scores all the guesses in one pass, which takes hardly longer than scoring one.",
  "Each guess is accepted with the chance min(1, q / p): q is how likely the target finds it, p how likely the draft did. So guesses that the target likes at least as much are always accepted, others in proportion.",
  "At the first rejection the target's token is put there, sampled from what the draft left out, (q − p)₊. If all were accepted, the same pass gives one more for free.",
  "Some drafters guess a tree instead: several next tokens, and several after each. The target scores all of them in one pass, and at most one path is accepted, child by child.",
  "Accepted and replaced tokens together are distributed exactly as if the target had written alone: it is faster, and nothing is lost. Step through the rounds below to see it happen.",
];
