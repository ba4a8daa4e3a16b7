/** Whether a URL names a queue on Redis. Apart from what understands it, which others needn't load. */
export function isRedisURL(url: string): boolean {
  return /^(?:rediss?|redis\+unix):/i.test(url);
}

/** For people: what stands before the host is nobody's business. */
export function withoutPassword(url: string): string {
  return url.replace(/^([a-z+]+:\/\/)[^/?#]*@/i, '$1');
}
