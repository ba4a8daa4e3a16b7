/** Parameters after those that they refer to. @throws what `refuse` makes of those that have no such order */
export function inOrder(
  references: ReadonlyMap<string, ReadonlySet<string>>,
  refuse: (circle: string[]) => Error,
): string[] {
  const order: string[] = [];
  const done = new Set<string>();
  const path: string[] = [];
  const visit = (key: string): void => {
    if (done.has(key)) return;
    if (path.includes(key)) throw refuse(path.slice(path.indexOf(key)));
    path.push(key);
    for (const each of references.get(key) ?? []) visit(each);
    path.pop();
    done.add(key);
    order.push(key);
  };
  for (const key of references.keys()) visit(key);
  return order;
}
