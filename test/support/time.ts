/**
 * How long a test waits for what must come, in ms, where nothing promises a time. It is for what hangs: the machine may have much else to do.
 * Shorter than the time limit of a test, so that the wait fails first, and says for what.
 */
export const PATIENCE = 20_000;
