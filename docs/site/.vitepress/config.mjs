// The site is made of docs/, whose pages read well in the repository, too. It loads nothing
// from elsewhere, and searches without a server.
import fs from 'node:fs'
import path from 'node:path'
import { defineConfig } from 'vitepress'

// "make site" copies docs/site to .site, and the rest of docs into it: what it needs has to lie beside the pages.
const docs = path.resolve(import.meta.dirname, '../docs')
const top = path.resolve(import.meta.dirname, '../..')
const repository = 'https://github.com/batonhq/baton'

// Decisions are for those who change the code, who read them in the repository.
const decisions = path.join('docs', 'adr')

function chinese(env) {
  return env.relativePath.startsWith('zh/')
}

// A page may lead out of docs/, to a file or a folder of the repository: the site has none of
// them, and leads to the forge.
function leadOut(md) {
  md.core.ruler.push('lead-out', (state) => {
    for (const block of state.tokens) {
      for (const token of [block, ...(block.children ?? [])]) {
        // Vite takes the address of a picture without a dot for the name of a package.
        if (token.type.startsWith('html_')) token.content = token.content.replace(/\b(src|srcset)="(?=\w[^":]*")/g, '$1="./')
        const href = token.type === 'link_open' && token.attrGet('href')
        if (href && token.attrGet('class') === 'header-anchor' && state.env.relativePath.startsWith('zh/')) {
          token.attrSet('aria-label', token.attrGet('aria-label').replace(/^Permalink to (?:"|“)(.*)(?:"|”)$/, '“$1”的链接'))
        }
        if (!href || /^[a-z]+:|^#|^\//.test(href)) continue
        const [file, hash] = href.split('#')
        const to = path.resolve(docs, path.dirname(state.env.relativePath), file)
        const inside = to === docs || to.startsWith(docs + path.sep)
        const below = path.relative(path.dirname(docs), to)
        if (inside && file.endsWith('.md') && !below.startsWith(decisions)) continue
        const there = path.join(top, below)
        const kind = fs.existsSync(there) && fs.statSync(there).isDirectory() ? 'tree' : 'blob'
        token.attrSet('href', `${repository}/${kind}/main/${below}${hash ? '#' + hash : ''}`)
      }
    }
  })
}

// keepTogether keeps a number and its unit, and the digits of a number, on one line.
function keepTogether(md) {
  md.core.ruler.push('keep-together', (state) => {
    for (const { children } of state.tokens) {
      for (const token of children ?? []) {
        if (token.type === 'text') token.content = token.content.replace(/(?<=\d) (?=(?:[nµm]?s|min|h|[KMG]i?B)(?![\p{L}\p{N}])|[%×]|\d{3}(?!\d))/gu, '\u00a0')
      }
    }
  })
}

// copyButton is Chinese on Chinese pages.
function copyButton(md) {
  const fence = md.renderer.rules.fence
  md.renderer.rules.fence = (...args) => {
    const html = fence(...args)
    return chinese(args[3]) ? html.replace('title="Copy Code"', 'title="复制代码"') : html
  }
}

// redirectFolders leads from NAME/ to the page NAME where the site has both a page and a folder of
// that name: a server that is asked for NAME/ finds the folder, in which there is no index.
function redirectFolders(outDir) {
  for (const name of fs.readdirSync(outDir, { recursive: true })) {
    const page = name + '.html'
    const index = path.join(outDir, name, 'index.html')
    if (!fs.existsSync(path.join(outDir, page)) || fs.existsSync(index)) continue
    // With .html, because some servers lead from NAME back to NAME/.
    const to = `../${path.basename(page)}`
    const lang = name.startsWith('zh') ? 'zh-Hans' : 'en'
    fs.writeFileSync(index, `<!doctype html><html lang="${lang}"><meta charset="utf-8"><title>Baton</title><link rel="icon" href="${icon}"><meta http-equiv="refresh" content="0; url=${to}"><a href="${to}">${path.basename(name)}</a></html>\n`)
  }
}

// description is the first paragraph of a page, for those who find it elsewhere.
function description(file) {
  const first = fs.readFileSync(file, 'utf8').replace(/^```.*?^```$|<!--.*?-->/gms, '').split(/\n\s*\n/).find((p) => /^[\p{L}*`"“]/u.test(p) && !/^!?\[[^\]]*\]\([^)]*\)$/.test(p)) ?? ''
  const text = first.replace(/\s+/g, ' ').replace(/!?\[([^\]]*)\]\([^)]*\)/g, '$1').replace(/\*\*|`/g, '').replaceAll('"', "'").trim()
  return text.length <= 200 ? text : text.slice(0, 199).replace(/[^ ，。；：]*$/u, '').trim() + '…'
}

// slug is the anchor that GitHub makes of a heading, so that a link to it leads in the repository and on the site.
// docs/docs_test.go compares the links with it.
function slug(heading) {
  return heading.trim().toLowerCase().replace(/[^\p{L}\p{N}\p{M} _-]/gu, '').replaceAll(' ', '-')
}

// The pages in the order in which they are read. A page without a title here has that of its file.
const order = [
  ['Start', '入门', ['index', 'stores', 'tutorials/nightly', 'tutorials/api', 'tutorials/flash-sale', 'tutorials/points']],
  ['Locks', '锁', ['locks', 'fencing', 'election', 'once', 'redlock', 'testing']],
  ['Limits', '限流', ['limits', 'algorithms', 'rules', 'queues', 'web', 'proxies']],
  ['Operation', '运维', ['agent', 'server', 'security', 'page', 'kubernetes', 'compatibility']],
  ['Reference', '参考', ['reference/cli', 'reference/urls', 'metrics']],
  ['Coming from', '迁移', ['coming-from', ...pagesIn('coming-from')]],
  ['Evidence', '验证与测量', ['measured', 'lab']],
  ['Words', '术语', ['glossary', 'architecture']],
]

function pagesIn(folder) {
  return fs.readdirSync(path.join(docs, folder)).filter((f) => f.endsWith('.md')).sort().map((f) => `${folder}/${f.slice(0, -3)}`)
}

function title(file) {
  return fs.readFileSync(file, 'utf8').match(/^# (.*)$/m)[1].replaceAll('`', '')
}

// sidebar lists the pages that a language has.
function sidebar(folder, chinese) {
  return order.map(([english, inChinese, names]) => ({
    text: chinese ? inChinese : english,
    items: names
      .map((name) => ({ name, file: path.join(docs, folder, name + '.md') }))
      .filter(({ file }) => fs.existsSync(file))
      .map(({ name, file }) => ({ text: name === 'index' ? (chinese ? '从这里开始' : 'Start here') : title(file), link: `/${folder}${name === 'index' ? '' : name}` })),
  })).filter((group) => group.items.length > 0)
}

// words cuts text into what the search knows: Chinese has no spaces between words, so each
// pair of characters is one, and the last character. Where a field is missing, text is what is
// searched for: its last character alone would be found everywhere. The browser runs this,
// too, away from this file.
function words(text, field) {
  const all = []
  for (const part of text.split(/[\n\r\p{Z}\p{P}]+/u)) {
    for (const piece of part.match(/\p{Script=Han}+|[^\p{Script=Han}]+/gu) ?? []) {
      const pairs = field === undefined && piece.length > 1 ? piece.length - 1 : piece.length
      if (!/\p{Script=Han}/u.test(piece)) all.push(piece)
      else for (let i = 0; i < pairs; i++) all.push(piece.slice(i, i + 2))
    }
  }
  return all
}

// labels are words of VitePress's own pages that have no setting: for those who hear a page.
// A file whose words have changed with a version of VitePress ends the build.
const labels = {
  VPDocFooter: ['Pager', '上一页与下一页'],
  VPNavBarExtra: ['extra navigation', '更多'],
  VPNavBarHamburger: ['mobile navigation', '菜单'],
  VPNavBarMenu: ['Main Navigation', '导航'],
  VPSidebar: ['Sidebar Navigation', '页面目录'],
  VPSidebarItem: ['toggle section', '展开或收起'],
}

// labelled puts the labels in the language of the page.
const labelled = {
  name: 'labelled',
  enforce: 'pre',
  transform(code, id) {
    const words = /\/theme-default\/components\/(\w+)\.vue$/.test(id) && labels[path.basename(id, '.vue')]
    if (!words) return
    const [english, chinese] = words
    const text = `pageLanguage === 'zh-Hans' ? '${chinese}' : '${english}'`
    const changed = code
      .replace(/<script\b.*\bsetup\b.*>/, `$&\nimport { useData as usePageData } from 'vitepress'\nconst { lang: pageLanguage } = usePageData()`)
      .replace(new RegExp(`(aria-label|label)="${english}"`), `:$1="${text}"`)
      .replace(new RegExp(`(>\\s*)${english}(\\s*<)`), `$1{{ ${text} }}$2`)
    if (!changed.includes('usePageData') || !changed.includes(text)) throw new Error(`${id} has no label "${english}"`)
    return changed
  },
}

const icon = 'data:image/svg+xml,' + encodeURIComponent('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><path d="M3 13L13 3" stroke="#3451b2" stroke-width="4" stroke-linecap="round"/></svg>')

export default defineConfig({
  title: 'Baton',
  description: 'Distributed locks and rate limits',
  srcDir: 'docs',
  outDir: '../dist/site',
  cleanUrls: true,
  srcExclude: ['adr/**'],
  head: [['link', { rel: 'icon', href: icon }]],
  // A page that the other language lacks has no switch to it: theme/style.css.
  transformPageData(page) {
    const name = page.relativePath
    const twin = name.startsWith('zh/') ? name.slice(3) : 'zh/' + name
    const file = path.join(docs, name)
    if (fs.existsSync(file)) page.description ||= description(file)
    if (!fs.existsSync(path.join(docs, twin))) page.frontmatter.pageClass = 'no-twin'
  },
  buildEnd({ outDir }) {
    redirectFolders(outDir)
  },
  vite: { plugins: [labelled] },
  markdown: {
    theme: { light: 'github-light-high-contrast', dark: 'github-dark-high-contrast' },
    config(md) {
      leadOut(md)
      copyButton(md)
      keepTogether(md)
    },
    anchor: { slugify: slug },
  },
  locales: {
    root: { label: 'English', lang: 'en', themeConfig: {
      sidebar: sidebar('', false),
      notFound: { title: 'There is no such page', quote: 'The address may be old. The search finds pages by their words.', linkText: 'To the first page', linkLabel: 'To the first page' },
    } },
    zh: {
      label: '简体中文',
      lang: 'zh-Hans',
      description: '分布式锁与限流',
      themeConfig: {
        sidebar: sidebar('zh/', true),
        notFound: { title: '没有这个页面', quote: '地址可能已经过时。可以按词搜索页面。', linkText: '回到首页', linkLabel: '回到首页' },
        skipToContentLabel: '跳到正文',
        outline: { label: '本页' },
        docFooter: { prev: '上一页', next: '下一页' },
        darkModeSwitchLabel: '主题',
        lightModeSwitchTitle: '浅色',
        darkModeSwitchTitle: '深色',
        sidebarMenuLabel: '目录',
        returnToTopLabel: '回到顶部',
        langMenuLabel: '语言',
      },
    },
  },
  themeConfig: {
    search: {
      provider: 'local',
      options: {
        miniSearch: { options: { tokenize: words } },
        locales: {
          zh: {
            translations: {
              button: { buttonText: '搜索', buttonAriaLabel: '搜索' },
              modal: {
                noResultsText: '没有找到',
                resetButtonTitle: '清除',
                backButtonTitle: '关闭搜索',
                displayDetails: '显示详情',
                footer: {
                  selectText: '打开',
                  selectKeyAriaLabel: '回车键',
                  navigateText: '移动',
                  navigateUpKeyAriaLabel: '向上键',
                  navigateDownKeyAriaLabel: '向下键',
                  closeText: '关闭',
                  closeKeyAriaLabel: 'Esc 键',
                },
              },
            },
          },
        },
      },
    },
    socialLinks: [{ icon: 'github', link: repository }],
  },
})
