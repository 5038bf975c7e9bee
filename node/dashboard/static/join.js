// What a mesh of one says: how to make it a mesh of two.
import { html, useState } from "./ui.js";

export function Join({ session }) {
  const here = session.loopback;
  const command = session.token_file ? "rumormill up --token TOKEN" : "rumormill up --certs DIR --peer HOST:PORT";
  return html`<div class="join">
    <h3>One node so far</h3>
    ${session.token_file
      ? html`<p>${here ? "It listens on this machine only. For a mesh on the LAN, stop it and run this on every machine, this one too:" : "Run this on another machine of this network; the nodes find each other:"}</p>`
      : html`<p>Give another machine a certificate of the same authority, and run there:</p>`}
    <${Command} text=${command} />
    ${session.token_file && html`<p class="fine">The token was printed when the node started, and is kept in <code>${session.token_file}</code></p>`}
  </div>`;
}

function Command({ text }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 2000);
  };
  return html`<p class="command"><code>${text}</code>${navigator.clipboard && html`<button type="button" class="quiet" onClick=${copy}>${copied ? "Copied" : "Copy"}</button>`}</p>`;
}
