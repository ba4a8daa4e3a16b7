import { sanitize, showValue } from '../../platform/index.ts';

const LONGEST = 100;

/** Checks a parameter's name. @param refuse makes the error */
export function checkParameterName(name: string, refuse: (why: string) => Error): void {
  if (name === '') throw refuse('a parameter needs a name');
  if (name === '__proto__') throw refuse(`a parameter can't be called ${name}`);
  if (name.length > LONGEST) throw refuse(`${showValue(name)} is longer than ${LONGEST} characters`);
  if (sanitize(name) !== name || /[{}]/.test(name)) {
    throw refuse(
      `the name ${showValue(name)} has characters in it that names of parameters can't have (braces, control characters, blanks at its ends)`,
    );
  }
}

/** Checks a phase's name, which begins the names of tasks and of files. @param refuse makes the error */
export function checkPhaseName(name: string, refuse: (why: string) => Error): void {
  if (name === '') throw refuse('a phase needs a name');
  if (name.length > LONGEST) throw refuse(`the name ${showValue(name)} is longer than ${LONGEST} characters`);
  if (sanitize(name) !== name || /^[-.]|[/\\{}*?]|\s/.test(name)) {
    throw refuse(
      `a phase can't be called ${showValue(name)}: its name begins those of tasks and directories; take letters, digits, _ and -`,
    );
  }
}
