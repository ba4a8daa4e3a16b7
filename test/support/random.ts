/** Chance that can be repeated. */
export class Random {
  #state: number;

  constructor(seed: number) {
    this.#state = seed >>> 0;
  }

  /** At least 0, less than `below`. */
  float(below = 1): number {
    this.#state = (this.#state + 0x9e3779b9) >>> 0;
    let x = this.#state;
    x = Math.imul(x ^ (x >>> 16), 0x85ebca6b);
    x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
    return (((x ^ (x >>> 16)) >>> 0) / 2 ** 32) * below;
  }

  integer(below: number): number {
    return Math.floor(this.float(below));
  }

  pick<T>(list: readonly T[]): T | undefined {
    return list[this.integer(list.length)];
  }
}
