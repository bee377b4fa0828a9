// Tables with the class "searched" get one field that narrows them all, and columns that sort each. Without a script they are whole.
document.addEventListener('DOMContentLoaded', () => {
  const tables = [...document.querySelectorAll('table.searched')];
  if (!tables.length) return;
  const rows = tables.flatMap(t => [...t.tBodies[0].rows]), texts = rows.map(r => r.textContent.toLowerCase());
  const box = document.createElement('p');
  box.className = 'table-search';
  box.innerHTML = '<label>Search <input type="search" placeholder="cifar10 fkl"></label> <output aria-live="polite"></output>';
  tables[0].parentElement.before(box);
  const field = box.querySelector('input'), said = box.querySelector('output');
  const narrow = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let n = 0;
    rows.forEach((r, i) => { r.hidden = !words.every(w => texts[i].includes(w)); n += !r.hidden; });
    said.textContent = `${n} of ${rows.length} rows`;
  };
  field.addEventListener('input', narrow);
  narrow();
  tables.forEach(sortable);
});

function sortable(table) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const value = (row, c) => row.cells[c].textContent.trim();
  const sort = c => {
    const up = heads[c].getAttribute('aria-sort') === 'descending';
    heads.forEach(h => h.setAttribute('aria-sort', 'none'));
    heads[c].setAttribute('aria-sort', up ? 'ascending' : 'descending');
    const number = r => parseFloat(value(r, c)), order = [...rows].sort((a, b) => {
      const x = number(a), y = number(b);
      if (isNaN(x) !== isNaN(y)) return isNaN(x) - isNaN(y); // what has no number stays at the end
      return (up ? 1 : -1)*(isNaN(x) ? value(a, c).localeCompare(value(b, c)) : x - y);
    });
    body.append(...order);
  };
  heads.forEach((h, c) => {
    h.classList.add('sorts'); h.tabIndex = 0; h.title = 'sort';
    h.addEventListener('click', () => sort(c));
    h.addEventListener('keydown', e => { if (e.key === 'Enter' || e.key === ' ') { e.preventDefault(); sort(c); } });
  });
}
