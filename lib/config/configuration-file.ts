// A configuration file: who may have written it, and what it says.

import { closeSync, constants, fstatSync, openSync, statSync } from 'node:fs';
import type * as YAML from 'yaml';
import { asError, GPUOwnerError, ifPossible } from '../errors.ts';
import {
  closest,
  decode,
  isMissing,
  isOwn,
  isRoot,
  listWords,
  pathIn,
  readAtMost,
  sanitize,
  showValue,
  userDirectory,
  userName,
  warnOnce,
} from '../platform/index.ts';
import { CHECKS, type Entries, type Kind, MACHINE_ONLY, MAPPINGS, USER_ONLY } from './configuration-keys.ts';
import { loadYAML, offsetOf } from './yaml.ts';

/** A configuration has some hundred bytes; the parser's time grows with the square of the number of keys. */
const MAX_BYTES = 64 * 1024;

export const MACHINE_FILE = '/etc/gpu-owner/config.yaml';

export function loadFiles(env: NodeJS.ProcessEnv) {
  const named = env.GPU_OWNER_MACHINE_CONFIG || undefined;
  const machinePath = named ?? MACHINE_FILE;
  const machine = loadFile(machinePath, 'machine', named !== undefined);
  const userPath = userFile(env);
  const user = userPath === null || userPath === machinePath ? null : loadFile(userPath, 'user', false);
  return { machinePath, machine, userPath, user };
}

function userFile(env: NodeJS.ProcessEnv): string | null {
  const directory = userDirectory('config', env);
  return directory === null ? null : pathIn(directory, 'gpu-owner/config.yaml');
}

export function loadFile(path: string, kind: Kind, required: boolean): Entries | null {
  if (path === '/dev/null') return null;
  const file = readText(path, kind, required);
  if (file === null) return null;
  const entries = parseFile(file.text, path, kind);
  if (entries.notifyWebhook !== undefined && (file.mode & 0o077) !== 0)
    throw problem(path, null, 'others may read it, and the URL of notifyWebhook is a secret; chmod 600');
  return entries;
}

/** The error for a mistake in a file, with its line. */
export function problem(path: string, line: number | null, text: string, cause?: unknown): GPUOwnerError {
  const where = line === null ? sanitize(path, 500) : `${sanitize(path, 500)}:${line}`;
  return new GPUOwnerError('ERR_CONFIGURATION', `${where}: ${text}`, { cause });
}

/**
 * The text of a configuration file; null where there is none. The file must be one that others can't have tampered with.
 * @param required whether the file was named explicitly, so that it must exist.
 * @throws {GPUOwnerError} ERR_CONFIGURATION
 */
function readText(path: string, kind: Kind, required: boolean): { text: string; mode: number } | null {
  // The usual case, without the error that would have to be made for it.
  if (!required && isMissing(path)) return null;
  let descriptor: number;
  try {
    // O_NONBLOCK: a FIFO must not hold a claim up.
    descriptor = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK | constants.O_NOCTTY);
  } catch (error) {
    const { code, message } = asError(error);
    if (code === 'ENOENT' || code === 'ENOTDIR') {
      if (!required) return null;
      throw problem(
        path,
        null,
        "GPU_OWNER_MACHINE_CONFIG names this file, and it doesn't exist; create it, unset the variable, or set it to /dev/null for none",
        error,
      );
    }
    // The home of another user, after `su` or `sudo` kept HOME: not our user's file.
    if (code === 'EACCES' && kind === 'user' && !canSee(path)) return null;
    if (code === 'EACCES') {
      throw problem(path, null, 'no permission to read it; let everybody read it (chmod a+r)', error);
    }
    throw problem(path, null, `it can't be opened (${code ?? message})`, error);
  }
  try {
    const stat = fstatSync(descriptor);
    if (!stat.isFile()) throw problem(path, null, 'it is not a regular file; it must be a file in YAML');
    if (kind === 'user' && !isOwn(stat.uid)) {
      warnOnce(
        `${sanitize(path, 500)} belongs to ${userName(stat.uid)}, so it is ignored; chown it to have it read.`,
      );
      return null;
    }
    checkTrust(path, stat.mode, stat.uid, kind, required);
    const refuse = (why: string, cause?: unknown) => problem(path, null, why, cause);
    const tooLarge = 'it is larger than 64 KiB; is it really the configuration?';
    const text = decode(readAtMost(descriptor, MAX_BYTES, tooLarge, refuse), refuse);
    return { text, mode: stat.mode };
  } finally {
    closeSync(descriptor);
  }
}

function canSee(path: string): boolean {
  return ifPossible(() => {
    statSync(path);
    return true;
  }, false);
}

function checkTrust(path: string, mode: number, uid: number, kind: Kind, named: boolean): void {
  if ((mode & 0o002) !== 0) {
    throw problem(path, null, 'every user may write to it; run chmod o-w');
  }
  if (kind === 'user' || isRoot(uid) || (named && uid === process.geteuid?.())) return;
  throw problem(path, null, `it belongs to uid ${uid}; the machine's file must belong to root (chown root)`);
}

function parseFile(text: string, path: string, kind: Kind): Entries {
  // The Debian package brings such a file, and loading the parser takes 10 ms of each start.
  if (/^(?:[ ]*(?:#[\x20-\x7e]*)?\n)*$/.test(text)) return {};
  const yaml = loadYAML();
  const lines = new yaml.LineCounter();
  const lineAt = (offset: number | undefined) => (offset === undefined ? null : lines.linePos(offset).line);
  const document = yaml.parseDocument(text, {
    lineCounter: lines,
    prettyErrors: false,
    logLevel: 'error',
    uniqueKeys: false, // checked below: the parser compares each key with each other
  });
  const mistake = document.errors[0] ?? document.warnings[0];
  if (mistake) {
    // Some messages of the parser quote the file, which may have a secret.
    const { code, message } = mistake;
    const said = text.includes('notifyWebhook') ? code.toLowerCase().replaceAll('_', ' ') : sanitize(message);
    throw problem(path, lineAt(mistake.pos[0]), `not valid YAML: ${said}`, mistake);
  }
  const { contents } = document;
  if (contents === null || (yaml.isScalar(contents) && contents.value === null)) return {};
  if (!yaml.isMap(contents)) {
    throw problem(
      path,
      lineAt(offsetOf(contents)),
      "it must have lines such as 'exclude: [0]', a key and its value",
    );
  }
  const entries: Record<string, unknown> = {};
  for (const { key: at, value: node } of contents.items) {
    const line = lineAt(offsetOf(at) ?? offsetOf(node));
    const key = yaml.isScalar(at) ? String(at.value) : '';
    checkKey(key, path, line, kind);
    if (Object.hasOwn(entries, key)) throw problem(path, line, `${key} is given twice; remove one`);
    const refuse = (where: unknown, why: string) => problem(path, lineAt(offsetOf(where)) ?? line, why);
    const mapping = MAPPINGS[key];
    if (mapping !== undefined) {
      entries[key] = mapping({ yaml, node, at, name: key, refuse }, kind);
      continue;
    }
    const value = plainValue(yaml, node, (why) => refuse(node, `${key}: ${why}`));
    try {
      entries[key] = CHECKS[key]?.(value, key);
    } catch (error) {
      if (error instanceof GPUOwnerError) throw refuse(node, error.message);
      throw error;
    }
  }
  return entries;
}

function checkKey(key: string, path: string, line: number | null, kind: Kind): void {
  const [foreign, owner] = kind === 'machine' ? [USER_ONLY, "a user's"] : [MACHINE_ONLY, "the machine's"];
  const known = [...Object.keys(CHECKS), ...Object.keys(MAPPINGS)].filter(
    (name) => !Object.hasOwn(foreign, name),
  );
  if (known.includes(key)) return;
  if (Object.hasOwn(foreign, key))
    throw problem(path, line, `${key} is for ${owner} file only: ${foreign[key]}`);
  const meant = closest(key, known);
  // Without the space after a colon, a secret is a part of the key.
  const shown = key.includes('://') ? 'with a URL in it: a space is missing after its colon' : showValue(key);
  throw problem(
    path,
    line,
    `there is no key ${shown}${meant ? `; did you mean '${meant}'?` : `; the known ones are ${listWords(known)}`}`,
  );
}

function plainValue(yaml: typeof YAML, node: unknown, refuse: (why: string) => GPUOwnerError): unknown {
  if (node === null || (yaml.isScalar(node) && node.value === null))
    throw refuse('it has no value; give one or leave the line out');
  if (yaml.isScalar(node)) return node.value;
  if (yaml.isSeq(node)) {
    return node.items.map((item) => {
      if (yaml.isScalar(item) && item.value !== null) return item.value;
      throw refuse('the entries of a list must be single values');
    });
  }
  throw refuse('it must be a single value or a list');
}
