// The panel of agents: what there is, whether it can be used, and which one the open
// session has.

import { button, clean, h, oneLine, sureButton } from "./dom.js";

const MOST_PAGES = 20;

/** `app` as the inspector has it. */
export async function agentsView(app) {
  const agents = await allAgents(app.call);
  const own = app.model?.settings?.agentId ?? null;
  const order = [...agents].sort((a, b) => (b.id === own) - (a.id === own));
  return h("ul", { class: "agents", "aria-label": "Agents" }, order.map((agent) => agentRow(agent, own, app)));
}

export async function allAgents(call) {
  const agents = [];
  let after = null;
  for (let page = 0; page < MOST_PAGES; page++) {
    const told = await call("agent/list", after === null ? {} : { after });
    agents.push(...told.agents);
    after = told.next ?? null;
    if (after === null) break;
  }
  return agents;
}

export const isUsable = (agent) => agent.enabled && agent.unavailable == null;

const KINDS = { native: "native", acp: "own process" };

function stateOf(agent) {
  if (agent.unavailable != null) return ["unavailable", "unavailable"];
  return agent.enabled ? ["ready", "ready"] : ["off", "off"];
}

function agentRow(agent, own, app) {
  const [state, words] = stateOf(agent);
  const isOwn = agent.id === own;
  return h("li", { data: { id: agent.id, state, own: String(isOwn) } },
    h("h3", null, h("span", { class: "name", dir: "auto" }, oneLine(agent.name, 80)),
      h("span", { class: "tag" }, KINDS[agent.kind] ?? oneLine(agent.kind, 20)),
      h("span", { class: "state" }, words)),
    agent.description ? h("p", { dir: "auto" }, oneLine(agent.description, 300)) : null,
    agent.unavailable != null ? h("p", { class: "quiet" }, clean(agent.unavailable.slice(0, 300))) : null,
    h("div", { class: "row" }, h("code", { dir: "ltr" }, oneLine(agent.id, 80)), isOwn ? h("span", { class: "mark" }, "this session's") : null),
    app.scopes.has("write") && isUsable(agent) ? deeds(agent, isOwn, app) : null);
}

function deeds(agent, isOwn, app) {
  const name = oneLine(agent.name, 80);
  const move = async () => {
    if (!(await app.act("move the session", "session/move", { sessionId: app.model.id, agent: agent.id }))) return;
    app.say(`The session is one of ${name} now.`);
    app.changed();
  };
  // An agent with a process of its own takes no session that began elsewhere.
  const canTake = app.model && !isOwn && agent.kind !== "acp";
  return h("div", { class: "deeds" },
    button("New session", () => app.newSession(agent.id), { class: "small", "aria-label": `New session of ${name}` }),
    canTake ? sureButton("Give it this session", move, { class: "small", name: `move-${agent.id}` }) : null);
}
