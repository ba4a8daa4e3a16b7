/** Texts by numbers from 0: each is kept once, since values repeat. */
export class Texts {
  private readonly texts: string[] = [];
  private readonly numbers = new Map<string, number>();

  add(text: string): number {
    let number = this.numbers.get(text);
    if (number === undefined) {
      number = this.texts.length;
      this.texts.push(text);
      this.numbers.set(text, number);
    }
    return number;
  }

  /** undefined: it isn't one of them. */
  numberOf(text: string): number | undefined {
    return this.numbers.get(text);
  }

  at(number: number): string {
    return this.texts[number] as string;
  }
}

/** The meanings of a task's parameters, in the order of the group's columns. */
export interface Form {
  task: number;
  meanings: readonly string[];
}

/**
 * Tasks with the same parameter names. Each has one form or, if its parameters are written otherwise than they mean, two, side
 * by side. They are kept as numbers in a row, because there may be a million tasks.
 */
export class TaskGroup {
  readonly columns: readonly string[];
  private readonly texts: Texts;
  /** Per form, the task's. */
  private readonly tasks: number[] = [];
  private readonly meanings: number[] = [];
  private readonly firstOf = new Map<number, number>();

  constructor(columns: readonly string[], texts: Texts) {
    this.columns = columns;
    this.texts = texts;
  }

  /** @param meanings by their numbers */
  add(task: number, meanings: readonly number[]): void {
    if (!this.firstOf.has(task)) this.firstOf.set(task, this.tasks.length);
    this.tasks.push(task);
    for (const meaning of meanings) this.meanings.push(meaning);
  }

  has(task: number): boolean {
    return this.firstOf.has(task);
  }

  *forms(): Generator<Form> {
    for (let form = 0; form < this.tasks.length; form++) yield this.form(form);
  }

  /** Of a task that it has. */
  formsOf(task: number): Form[] {
    const found = [];
    for (let form = this.firstOf.get(task) ?? 0; this.tasks[form] === task; form++)
      found.push(this.form(form));
    return found;
  }

  private form(form: number): Form {
    const width = this.columns.length;
    const meanings = this.meanings.slice(form * width, (form + 1) * width);
    return { task: this.tasks[form] as number, meanings: meanings.map((number) => this.texts.at(number)) };
  }
}
