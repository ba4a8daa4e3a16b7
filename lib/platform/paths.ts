/** As `join(directory, name)` for names without dots: a claim makes dozens of paths, and `join` takes ten times as long. */
export function pathIn(directory: string, name: string): string {
  return directory.endsWith('/') ? directory + name : `${directory}/${name}`;
}
