/** Whether a URL names a queue on Redis. Apart from what understands it, which others needn't load. */
export function isRedisURL(url: string): boolean {
  return /^(?:rediss?|redis\+unix):/i.test(url);
}
