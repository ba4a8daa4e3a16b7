const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const OPENING = new Set([0x7b, 0x5b]); // { [
const CLOSING = new Set([0x7d, 0x5d]); // } ]
const BLANKS = new Set([0x20, 0x09, 0x0a, 0x0d]);
/** Deeper ones are no results: they would only use up the parser's stack. */
const DEEPEST = 100;

/** Finds where a JSON object ends that comes in pieces: nothing else ends a request. Whether it is JSON, the parser says then. */
export class RequestEnd {
  #depth = 0;
  #begun = false;
  #inString = false;
  #escaped = false;

  /** Has anything of it come? */
  get begun(): boolean {
    return this.#begun;
  }

  /** @returns how many bytes of the piece belong to it; null: it goes on. @throws Error if this can't become an object */
  find(piece: Uint8Array): number | null {
    for (let i = 0; i < piece.length; i++) {
      const byte = piece[i] as number;
      // Bytes of other characters than ASCII are all above it, so none of them is mistaken.
      if (this.#inString) this.#inside(byte);
      else if (byte === QUOTE) this.#inString = this.#expectBegun();
      else if (OPENING.has(byte)) this.#open(byte);
      else if (CLOSING.has(byte)) {
        this.#expectBegun();
        if (--this.#depth === 0) return i + 1;
      } else if (!BLANKS.has(byte)) this.#expectBegun();
    }
    return null;
  }

  #inside(byte: number): void {
    if (this.#escaped) this.#escaped = false;
    else if (byte === BACKSLASH) this.#escaped = true;
    else if (byte === QUOTE) this.#inString = false;
  }

  #open(byte: number): void {
    if (byte === 0x7b) this.#begun = true;
    this.#expectBegun();
    if (++this.#depth > DEEPEST) throw new Error(`it is nested more than ${DEEPEST} deep`);
  }

  #expectBegun(): true {
    if (!this.#begun) throw new Error('a request is one JSON object, {"type": "status"} for instance');
    return true;
  }
}
