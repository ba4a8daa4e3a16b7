import { writeSync } from 'node:fs';

/**
 * Writes to standard output or error for a program that runs on when nobody reads it any longer: its terminal closed, its pipe
 * broken, the disk behind it full. A reader that is slow is waited for, as ever.
 */
export function writeIfRead(descriptor: number, text: string): void {
  const bytes = Buffer.from(text);
  for (let done = 0; done < bytes.length; ) {
    try {
      done += writeSync(descriptor, bytes, done);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EAGAIN') continue; // somebody else made it non-blocking
      return;
    }
  }
}
