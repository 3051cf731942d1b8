-- Whether bytes contain one mark of each group: the arguments from `first` on, with '' between two groups.
local function has_marks(bytes, first)
    local has_one = #ARGV < first
    for at = first, #ARGV do
        local mark = ARGV[at]
        if mark == '' then
            if not has_one then
                return false
            end
            has_one = false
        elseif not has_one then
            has_one = string.find(bytes, mark, 1, true)
        end
    end
    return has_one
end
