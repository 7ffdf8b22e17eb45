// Draws the Mermaid diagrams of the pages, for the site: a reader needs no script, asks for nothing, and
// the page is as high as it stays. Their colours are those of the theme. Mermaid is large, so "make diagrams"
// draws, and "make site" reads: a drawing has the name of its source's checksum.
import crypto from 'node:crypto'
import fs from 'node:fs'
import path from 'node:path'

// Mermaid computes with colours, so it gets these, which become the theme's.
const colours = {
  '#010101': 'var(--vp-c-text-1)',
  '#020202': 'var(--vp-c-text-2)',
  '#030303': 'var(--vp-c-bg-soft)',
  '#040404': 'var(--vp-c-divider)',
  '#050505': 'var(--vp-c-bg)',
}

const look = {
  theme: 'base',
  themeVariables: {
    background: '#050505', textColor: '#010101', lineColor: '#020202',
    primaryColor: '#030303', primaryTextColor: '#010101', primaryBorderColor: '#020202',
    secondaryColor: '#030303', secondaryTextColor: '#010101', secondaryBorderColor: '#020202',
    tertiaryColor: '#050505', tertiaryTextColor: '#010101', tertiaryBorderColor: '#040404',
    titleColor: '#010101', clusterBkg: '#050505', clusterBorder: '#040404', edgeLabelBackground: '#050505', arrowheadColor: '#020202',
    fontSize: '13px',
  },
  fontFamily: 'system-ui, sans-serif',
  htmlLabels: false,
  flowchart: { htmlLabels: false, nodeSpacing: 16, rankSpacing: 26, padding: 8, diagramPadding: 4 },
  startOnLoad: false,
}

// load is Mermaid in a document without a browser. The pages are ours: nothing has to be cleaned of scripts.
async function load() {
  const { createHTMLWindow } = await import('svgdom')
  globalThis.window = createHTMLWindow()
  globalThis.document = window.document
  globalThis.CSSStyleSheet = class {
    cssRules = []
    insertRule(rule) { this.cssRules.push({ cssText: rule }) }
    replaceSync() {}
  }
  const purify = (await import('dompurify')).default
  Object.assign(purify, { sanitize: (text) => text, addHook() {} })
  return (await import('mermaid')).default
}

// sized gives a drawing its own size, instead of that of its column.
function sized(svg) {
  const [, width, height] = svg.match(/viewBox="\S+ \S+ (\S+) (\S+)"/)
  return svg.replace(/ width="100%"/, ` width="${Math.ceil(width)}" height="${Math.ceil(height)}"`).replace(/max-width: [^;"]*;?/, '')
}

const [docs, drawings] = ['../../docs', '../drawings'].map((to) => path.resolve(import.meta.dirname, to))
const mermaid = await load()
mermaid.initialize(look)
fs.rmSync(drawings, { recursive: true, force: true })
fs.mkdirSync(drawings)
for (const page of fs.readdirSync(docs, { recursive: true }).filter((name) => name.endsWith('.md'))) {
  for (const [, source] of fs.readFileSync(path.join(docs, page), 'utf8').matchAll(/^```mermaid\n(.*?)^```$/gms)) {
    const name = crypto.createHash('sha256').update(source).digest('hex').slice(0, 16)
    const { svg } = await mermaid.render(`diagram-${name}`, source)
    fs.writeFileSync(path.join(drawings, `${name}.svg`), sized(svg).replace(/#(0[1-5])\1\1/g, (c) => colours[c]) + '\n')
  }
}
