import { GPUOwnerError } from '../errors.ts';
import { nativeOrNull } from '../native.ts';

/**
 * Sets variables of this process, for libraries in it and programs that it becomes. Runtimes other than Node.js, such as Bun, change
 * only what JavaScript sees when `process.env` is assigned to. @param variables undefined: removes it
 * @throws ERR_UNSUPPORTED_PLATFORM where that can't be done
 */
export function setVariables(variables: Readonly<Record<string, string | undefined>>): void {
  const native = nativeOrNull();
  for (const [name, value] of Object.entries(variables)) {
    if (value === undefined) delete process.env[name];
    else process.env[name] = value;
    if (native === null) continue;
    const wanted = value ?? null;
    if (native.processVariable(name) === wanted) continue;
    native.processSetVariable(name, wanted);
    if (native.processVariable(name) === wanted) continue;
    throw new GPUOwnerError(
      'ERR_UNSUPPORTED_PLATFORM',
      `gpu-owner needs Node.js: this runtime (${process.execPath}) doesn't pass ${name} on to CUDA and to commands.`,
    );
  }
}

/** Puts a directory first in a list such as PATH. Leaves a list alone that has the directory: another one may have been put before it. */
export function prepend(directory: string, list: string): string {
  return list.split(':').includes(directory) ? list : `${directory}:${list}`;
}

/** The launcher's variable with the value of `NODE_EXTRA_CA_CERTS` while Node.js starts. */
export const EXTRA_CERTIFICATES = 'GPU_OWNER_EXTRA_CA_CERTS';

/** As the launcher does, for a program of ours that this process becomes: Node.js would take 50 ms to read these certificates. */
export function hideExtraCertificates(): void {
  const { NODE_EXTRA_CA_CERTS: file } = process.env;
  if (!file || !/^[\w/.+,@:=%-]+$/.test(file)) return;
  setVariables({ NODE_EXTRA_CA_CERTS: undefined, [EXTRA_CERTIFICATES]: file });
}

/** Undoes {@link hideExtraCertificates}, also the launcher's: processes that this one starts find the variable. */
export function showExtraCertificates(): void {
  const file = process.env[EXTRA_CERTIFICATES];
  if (file) setVariables({ NODE_EXTRA_CA_CERTS: file, [EXTRA_CERTIFICATES]: undefined });
}
