/** Live events from the server: one stream for the page that is open, none while it is paused or hidden. */

import { urlOf } from "./api.js";
import { settings } from "./reader.js";

/** How long to wait before a stream that ended is opened again, in milliseconds. */
const RETRY_DELAYS = [1000, 2000, 5000, 10000];

/**
 * Follow a stream. `after` is called for the place from which to continue; `take` gets each message, with its type,
 * its data as text, and its id; `changed` is called when the connection is made or lost.
 */
export class LiveStream {
  constructor({ path, kinds, after, take, changed = () => {} }) {
    this.path = path;
    this.kinds = kinds;
    this.after = after;
    this.take = take;
    this.changed = changed;
    this.state = "off";
    this.failures = 0;
    this.hasEnded = false;
    this.whenVisible = () => this.check();
    document.addEventListener("visibilitychange", this.whenVisible);
    this.check();
  }

  /** Connect or disconnect, as the page is to be live or not. */
  check() {
    const isWanted = !settings.paused && !document.hidden && !this.hasEnded;
    if (isWanted && !this.source) this.connect();
    if (!isWanted && this.source) this.disconnect();
  }

  connect() {
    clearTimeout(this.timer);
    this.source = new EventSource(urlOf(this.path, { after: this.after() }));
    this.source.onopen = () => this.become("on");
    this.source.onerror = () => this.tryLater();
    for (const kind of this.kinds) {
      this.source.addEventListener(kind, (event) => {
        this.failures = 0;
        this.take(kind, event.data, event.lastEventId);
      });
    }
    this.source.addEventListener("end", () => this.end());
    this.source.addEventListener("problem", () => this.tryLater());
  }

  disconnect() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
    this.become("off");
  }

  /** Nothing more will come. */
  end() {
    this.hasEnded = true;
    this.disconnect();
  }

  tryLater() {
    this.disconnect();
    this.become("lost");
    const delay = RETRY_DELAYS[Math.min(this.failures, RETRY_DELAYS.length - 1)];
    this.failures += 1;
    this.timer = setTimeout(() => this.check(), delay);
  }

  become(state) {
    if (this.state === state) return;
    this.state = state;
    this.changed(state);
  }

  close() {
    document.removeEventListener("visibilitychange", this.whenVisible);
    this.hasEnded = true;
    this.disconnect();
  }
}
