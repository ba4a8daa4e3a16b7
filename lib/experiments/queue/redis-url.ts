/** Whether a URL names a queue on Redis. Apart from what understands it, which others needn't load. */
export function isRedisURL(url: string): boolean {
  return /^(?:rediss?|redis\+unix):/i.test(url);
}

/**
 * For people: what stands before the host is nobody's business, also where it has a '/' or '?' in it that isn't encoded. Of all that may
 * be behind the host, only the parameter `ca` has an '@'.
 */
export function withoutPassword(url: string): string {
  return url.replace(/^([a-z+]+:\/\/)(?:(?![?&]ca=).)*@/is, '$1');
}
