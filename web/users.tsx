// The colour of a user: from the name, the same on each machine and each day. The name always stands beside it.

/** As page.css has them, from .u0 on. */
const COLOURS = 8;

/** The class that sets --c. */
export function colourOf(user: string | null | undefined): string {
  if (!user) return 'nobody';
  // FNV-1a: similar names get other colours.
  let hash = 2_166_136_261;
  for (let i = 0; i < user.length; i++) hash = Math.imul(hash ^ user.charCodeAt(i), 16_777_619) >>> 0;
  return `u${(hash >>> 15) % COLOURS}`;
}

/** A user's name, with the dot of its colour. */
export function User({ name }: { name: string }) {
  return (
    <span class="user" title={name}>
      <i class={`dot ${colourOf(name)}`} />
      <b class="cut">{name}</b>
    </span>
  );
}
