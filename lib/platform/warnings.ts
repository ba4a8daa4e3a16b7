/** Says something that a person should know but that stops nothing. */
export type WarningListener = (message: string) => void;

let listener: WarningListener = (message) => process.emitWarning(message, 'GPUOwnerWarning');
const said = new Set<string>();

/** The command prints warnings its own way; the library leaves them to `process.emitWarning`. */
export function onWarning(replacement: WarningListener): void {
  listener = replacement;
}

export function warn(message: string): void {
  listener(message);
}

/** For what holds as long as the process lives: said once is enough. */
export function warnOnce(message: string): void {
  if (said.has(message)) return;
  said.add(message);
  listener(message);
}
