// The part that the doctor and the self-test share: programs that may hang are supervised, and what they find is shown.
export { Page } from './page.ts';
export { messageIn, runProgram, Subprocess, stopPrograms, within } from './subprocess.ts';
