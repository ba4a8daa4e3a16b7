import { mkdir, stat } from 'node:fs/promises';
import { dirname } from 'node:path';

/**
 * Makes a directory and those above it that aren't there. Node.js's own way (`recursive`) never ends below a directory that is
 * there and takes none: `/proc`, and places where something is mounted on demand.
 * @throws NodeJS.ErrnoException
 */
export async function makeDirectory(path: string): Promise<void> {
  try {
    await mkdir(path);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    const parent = dirname(path);
    if (code === 'ENOENT' && parent !== path) {
      if (!(await isDirectory(parent))) await makeDirectory(parent);
      await mkdir(path).catch(unlessThere(path));
    } else {
      await unlessThere(path)(error);
    }
  }
}

/** Somebody else may have been quicker. */
function unlessThere(path: string): (error: unknown) => Promise<void> {
  return async (error) => {
    if (!(await isDirectory(path))) throw error;
  };
}

async function isDirectory(path: string): Promise<boolean> {
  return stat(path).then(
    (there) => there.isDirectory(),
    () => false,
  );
}
