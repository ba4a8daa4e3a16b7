import { connect, createServer, type Server, type Socket } from 'node:net';

/** Stands between a client and Redis, as a network that can be cut. */
export class Network {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  #cut = false;
  #losing = false;

  private constructor(server: Server) {
    this.#server = server;
  }

  static async start(port: number): Promise<Network> {
    const server = createServer();
    const network = new Network(server);
    server.on('connection', (near) => {
      const far = connect(port, '127.0.0.1');
      for (const [from, to] of [
        [near, far],
        [far, near],
      ] as const) {
        network.#sockets.add(from);
        // While it is cut, everything is swallowed without an error.
        from.on('data', (data) => {
          if (from === far && network.#losing) network.#lose();
          else if (!network.#cut) to.write(data);
        });
        from.on('error', () => {});
        from.on('close', () => {
          network.#sockets.delete(from);
          to.destroy();
        });
      }
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', () => resolve()));
    return network;
  }

  get port(): number {
    return (this.#server.address() as { port: number }).port;
  }

  cut(): void {
    this.#cut = true;
  }

  /** The next answer is lost, and connections break. @param so false: it isn't after all */
  loseAnswer(so = true): void {
    this.#losing = so;
  }

  /** Lets traffic through again. Packets that were under way are lost. */
  mend(): void {
    this.#cut = false;
    for (const socket of this.#sockets) socket.destroy();
  }

  #lose(): void {
    this.#losing = false;
    this.mend();
  }

  close(): void {
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
  }
}
