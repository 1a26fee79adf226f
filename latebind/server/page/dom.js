// Makes elements. What comes from the server gets in as text alone, never as markup.

const SVG = "http://www.w3.org/2000/svg";

export function element(tag, attributes = {}, ...children) {
  return dressed(document.createElement(tag), attributes, children);
}

export function shape(tag, attributes = {}, ...children) {
  return dressed(document.createElementNS(SVG, tag), attributes, children);
}

function dressed(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Writes text only where it has changed, so that what somebody has marked stays marked.
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// A list of names and values that is filled again and again: [[name, value], ...]; what is not among them goes.
export class KeyFigures {
  constructor() {
    this.node = element("dl", { class: "key" });
    this.values = new Map();
  }

  show(pairs) {
    const wanted = new Set(pairs.map(([name]) => name));
    for (const [name, place] of this.values) {
      if (!wanted.has(name)) {
        place.parentNode.remove();
        this.values.delete(name);
      }
    }
    pairs.forEach(([name, value], place) => {
      if (!this.values.has(name)) {
        const made = element("dd");
        element("div", {}, element("dt", {}, name), made);
        this.values.set(name, made);
      }
      const pair = this.values.get(name).parentNode;
      const there = this.node.children[place];
      if (there !== pair) this.node.insertBefore(pair, there ?? null);
      write(this.values.get(name), value);
    });
  }
}

// A table whose rows stay where they are from one look to the next. Columns: [[title, (row) => text or node,
// (row) => class or nothing], ...]; a node is made once, with the row; text is written anew, with its class.
export class Table {
  constructor(columns) {
    this.columns = columns;
    this.rows = new Map();
    this.body = element("tbody");
    const titles = columns.map(([title]) => element("th", { scope: "col" }, title));
    this.node = element("table", {}, element("thead", {}, element("tr", {}, ...titles)), this.body);
  }

  show(rows) {
    const wanted = new Set(rows.map((row) => row.key));
    for (const [key, line] of this.rows) {
      if (!wanted.has(key)) {
        line.remove();
        this.rows.delete(key);
      }
    }
    rows.forEach((row, place) => {
      const line = this.write(row);
      const there = this.body.children[place];
      if (there !== line) this.body.insertBefore(line, there ?? null);
    });
  }

  write(row) {
    let line = this.rows.get(row.key);
    if (line === undefined) {
      line = element("tr", {}, ...this.columns.map(([title]) => element("td", { "data-label": title })));
      this.columns.forEach(([, cell], place) => {
        const made = cell(row);
        if (made instanceof Node) line.children[place].append(made);
      });
      this.rows.set(row.key, line);
    }
    this.columns.forEach(([, cell, kind], place) => {
      const made = cell(row);
      if (!(made instanceof Node)) write(line.children[place], made);
      if (kind) line.children[place].className = kind(row);
    });
    return line;
  }
}
