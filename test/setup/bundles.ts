// Where tests put programs that they have bundled: a worker of vitest's gets no chance to tidy up when it ends.
import { chmodSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestProject } from 'vitest/node';

declare module 'vitest' {
  export interface ProvidedContext {
    bundles: string;
  }
}

export default function setup(project: TestProject): () => void {
  const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-bundles-'));
  chmodSync(directory, 0o755); // some run as other users
  project.provide('bundles', directory);
  return () => rmSync(directory, { recursive: true, force: true });
}
