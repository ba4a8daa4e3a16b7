// The log of a job, over the page. The text is a program's, and is only ever set as text.
import { useEffect, useLayoutEffect, useRef } from 'preact/hooks';
import { outputLines } from '../lib/platform/text.ts';
import { useLog } from './connection.ts';

export interface OpenLog {
  /** As the API takes it. */
  address: string;
  title: string;
  command: string;
}

interface LogDialogProps extends OpenLog {
  token: string;
  isSeen: boolean;
  /** Why the page has no connection; null: it has one. */
  lost: string | null;
  onClose: () => void;
}

export function LogDialog({ address, title, command, token, isSeen, lost, onClose }: LogDialogProps) {
  const log = useLog(address, token, isSeen && lost === null);
  const { text, isOver } = log;
  // The whole log stays right.
  const problem = isOver ? null : (log.problem ?? lost);
  const dialog = useRef<HTMLDialogElement>(null);
  const output = useRef<HTMLPreElement>(null);
  /** Whether the end is shown, and so the view goes on with the output. */
  const isAtEnd = useRef(true);
  useEffect(() => dialog.current?.showModal(), []);
  useLayoutEffect(() => {
    if (isAtEnd.current && output.current !== null) output.current.scrollTop = output.current.scrollHeight;
  }, [text]);
  return (
    <dialog ref={dialog} class="log" aria-label={`Log of ${title}`} onClose={onClose}>
      <div class="heading">
        <h2>{title}</h2>
        <button type="button" onClick={() => dialog.current?.close()}>
          Close
        </button>
      </div>
      <p class="model" title={command}>
        {command}
      </p>
      <pre
        ref={output}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: scrollable regions need it
        tabIndex={0}
        onScroll={({ currentTarget: { scrollTop, scrollHeight, clientHeight } }) => {
          isAtEnd.current = scrollHeight - scrollTop - clientHeight < 20;
        }}
      >
        {outputLines(text).join('\n')}
      </pre>
      <p class={problem === null ? 'connection' : 'connection bad'} role="status">
        {statusOf(text !== '', isOver, problem)}
      </p>
    </dialog>
  );
}

function statusOf(hasText: boolean, isOver: boolean, problem: string | null): string {
  if (problem !== null) return `${problem}. Trying again.`;
  if (isOver) return hasText ? 'The job has ended.' : 'The job has ended, and has written nothing.';
  return hasText ? 'live' : 'No output yet.';
}
