// The site is made of docs/, whose pages read well in the repository, too. It loads nothing
// from elsewhere, and searches without a server.
import fs from 'node:fs'
import path from 'node:path'
import { defineConfig } from 'vitepress'

// "make site" copies site/ to .site, and docs/ into it: what it needs has to lie beside the pages.
const docs = path.resolve(import.meta.dirname, '../docs')
const top = path.resolve(import.meta.dirname, '../..')
const repository = 'https://github.com/batonhq/baton'

// A page may lead out of docs/, to a file or a folder of the repository: the site has none of
// them, and leads to the forge.
function leadOut(md) {
  md.core.ruler.push('lead-out', (state) => {
    for (const block of state.tokens) {
      for (const token of block.children ?? []) {
        const href = token.type === 'link_open' && token.attrGet('href')
        if (!href || /^[a-z]+:|^#|^\//.test(href)) continue
        const [file, hash] = href.split('#')
        const to = path.resolve(docs, path.dirname(state.env.relativePath), file)
        const inside = to === docs || to.startsWith(docs + path.sep)
        if (inside && file.endsWith('.md')) continue
        const below = path.relative(path.dirname(docs), to)
        const there = path.join(top, below)
        const kind = fs.existsSync(there) && fs.statSync(there).isDirectory() ? 'tree' : 'blob'
        token.attrSet('href', `${repository}/${kind}/main/${below}${hash ? '#' + hash : ''}`)
      }
    }
  })
}

// The pages in the order in which they are read. A page without a title here has that of its file.
const order = [
  ['Tutorials', '教程', ['index', 'tutorials/nightly', 'tutorials/leader', 'tutorials/api']],
  ['Locks', '锁', ['fencing', 'testing', 'certificates']],
  ['Limits', '限流', ['limits', 'rules', 'budgets', 'queues', 'web', 'proxies']],
  ['Operation', '运维', ['agent', 'server', 'security', 'page', 'metrics', 'compatibility', 'requirements']],
  ['Coming from', '迁移', ['coming-from', ...pagesIn('coming-from')]],
  ['Evidence', '证据', ['verification', 'soak', 'benchmarks', 'comparison', 'scale']],
  ['Words and rooms', '用词与结构', ['glossary', 'architecture']],
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
      .map(({ name, file }) => ({ text: title(file), link: `/${folder}${name}` })),
  })).filter((group) => group.items.length > 0)
}

export default defineConfig({
  title: 'Baton',
  description: 'Distributed locks and rate limits',
  srcDir: 'docs',
  outDir: '../dist/site',
  cleanUrls: true,
  markdown: { config: leadOut },
  locales: {
    root: { label: 'English', lang: 'en', themeConfig: { sidebar: sidebar('', false) } },
    zh: {
      label: '简体中文',
      lang: 'zh-Hans',
      description: '分布式锁与限流',
      themeConfig: {
        sidebar: sidebar('zh/', true),
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
        locales: {
          zh: {
            translations: {
              button: { buttonText: '搜索', buttonAriaLabel: '搜索' },
              modal: {
                noResultsText: '没有找到',
                resetButtonTitle: '清除',
                displayDetails: '显示详情',
                footer: { selectText: '打开', navigateText: '移动', closeText: '关闭' },
              },
            },
          },
        },
      },
    },
    socialLinks: [{ icon: 'github', link: repository }],
  },
})
